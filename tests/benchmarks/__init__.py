"""What a decision costs, measured: ``python -m tests.benchmarks``.

Machines differ and are shared, so nothing here passes or fails. Every figure is measured several times, and beside it,
in the same repetition, a peer or a physical limit: the ratio of the two travels to other machines, the rate does not.

decide    the rules alone, with a short and a long history
simulator simulated trials on one core, by policy
policies  how well the rules choose: regret by policy, on measured and on made problems
engine    one transaction per batch, against the same statements sent by the bare driver, and against fsync
rpc       a command through RabbitMQ, a worker and MariaDB, against an echo through the same queue
workers   one, two and three workers under the same load
client    what a training pays for an evaluation, and for the import
epochs    what a training loop pays per epoch, against the same loop without the client
growth    the engine on a short and on a long event log
many      two thousand trainings that hardly ever report, and a broker that restarts under them
"""

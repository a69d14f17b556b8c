"""What a decision costs, measured: ``python -m tests.benchmarks``.

Machines differ and are shared, so nothing here passes or fails. Every figure is measured several times, and beside it,
in the same repetition, a peer or a physical limit: the ratio of the two travels to other machines, the rate does not.

decide    the rules alone, with a short and a long history
simulator simulated trials on one core, by policy
policies  how well the rules choose: regret by policy, on measured and on made problems
engine    one transaction per batch, against the same statements sent by the bare driver, and against fsync
rpc       a report through RabbitMQ, a worker and MariaDB, beside Zeus' server and floors
loads     one job, a job for each training, the other policy; two workers beside one at equal commits
workers   whole trials by one, two and four workers, audited
client    what a training pays for an evaluation, and for the import
epochs    what a training loop pays per epoch, against the same loop without the client
growth    decisions with 10, 1 000 and 100 000 ended trials behind them
counts    requests to the database and AMQP frames per decision
lifecycle a worker's start-up, its drain under load, and its memory
many      two thousand trainings that hardly ever report, and a broker that restarts under them; not with --quick

Paths, loads and what they cost go to build/bench.json, and from there into tables and pictures (``page``). A window in
which foreign processes took more than a tenth of the machine is measured again, up to twice, and marked if that does
not help.
"""

"""`bso demo` through a RabbitMQ, a MariaDB and workers of its own, which live as long as it does.

Usage: python -m tools.demo_queue [OPTIONS OF bso demo]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.private_servers import MariaDB, RabbitMQ, ServerFailed, ServerMissing

WORKERS = 2
STOP_TIMEOUT_S = 30.0
BSO = (sys.executable, "-m", "bso_cli")


def main(words: list[str]) -> int:
    """Start everything, run the demo, end everything. Returns the demo's exit code.

    Addresses are in the environment: everybody can read arguments. There --out would mean a job without servers.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--out")
    known, rest = options.parse_known_args(words)
    kept = {} if known.out is None else {"BSO_STATE_DIR": str(known.out)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bso-demo-")))
        _say("starting a private RabbitMQ and a private MariaDB")
        try:
            amqp_url, database_url = _servers(stack)
        except (ServerMissing, ServerFailed) as error:
            _say(str(error))
            return 1
        environment = {**os.environ, "BSO_DATABASE_URL": database_url, "BSO_URL": amqp_url}
        environment |= {"BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json"}
        _say("bso migrate")
        subprocess.run([*BSO, "migrate"], env=environment, stdout=subprocess.DEVNULL, check=True)
        workers = {}
        for number in range(1, WORKERS + 1):
            _say(f"bso worker ({number} of {WORKERS})")
            log = folder / f"worker-{number}.log"
            workers[log] = stack.enter_context(_worker(environment, log))
        code = subprocess.run([*BSO, "demo", *rest], env=environment | kept, check=False).returncode
        for log, worker in workers.items():
            if worker.poll() is not None:
                _say(f"a worker ended with {worker.returncode}: {log.read_text(errors='replace').strip()[-600:]}")
                code = code or 1
        return code


def _servers(stack: ExitStack) -> tuple[str, str]:
    broker, database = RabbitMQ(), MariaDB()
    stack.callback(broker.close)
    stack.callback(database.close)
    with ThreadPoolExecutor(2) as both:
        started = both.submit(broker.start), both.submit(database.start)
        for server in started:
            server.result()
    return broker.create_vhost(), database.create_database()


@contextmanager
def _worker(environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        # A session of its own: Ctrl-C is for the demo, and the workers are stopped after it.
        process = subprocess.Popen(
            [*BSO, "worker"], env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

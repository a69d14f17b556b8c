"""Servers for tests, and what tests do to them.

Fixtures (tests/servers/fixtures.py; known to every test, all synchronous, each starts only what is asked for):

amqp_url              a new, empty RabbitMQ virtual host per test: amqp://guest:PASSWORD@127.0.0.1:PORT/bso-...
mysql_url             a new, empty database per test: mysql+asyncmy://root:PASSWORD@127.0.0.1:PORT/... (or given)
postgres_url          a new, empty database per test: postgresql+asyncpg://postgres:PASSWORD@127.0.0.1:PORT/...
sqlite_url            a file per test, not created yet: sqlite+aiosqlite:////...
database_url          parametrised: sqlite, mariadb, postgres, and mysql where BSO_TEST_DATABASE_URL names one
rabbitmq_management   tools.private_servers.Management of the broker behind amqp_url: create_vhost, delete_vhost,
                      add_user(url, name, password, configure=, write=, read=) -> that user's URL, permit,
                      permit_topics, queues, close_connections (by the server), request (anything else)
rabbitmq_server       session: the private server (RabbitMQ, MariaDB, PostgreSQL of tools.private_servers), with
mariadb_server        port, url, create_vhost() or create_database(), MariaDB and PostgreSQL also execute(sql)
postgresql_server
encrypted_mariadb     session: private servers with a certificate (tests.servers.encrypted), whose logins must come
encrypted_postgresql  encrypted, or with a certificate: create_database(login, **options), authority, show(certificate)
breakable_rabbitmq    the same server, for a test that breaks it: kill() (SIGKILL), freeze() and thaw() (SIGSTOP,
breakable_mariadb     SIGCONT), stop() (in order), start() (same port, same data); afterwards it is mended. RabbitMQ
breakable_postgresql  takes 4 s to start, the others less than one
tls_broker            a TlsBroker: a virtual host per test of a private RabbitMQ that listens with TLS, too, where
                      certificates log in: url (amqps://), url_with(options), plain_url, authority, renew()
asking_broker         the same, of one that lets nobody in by TLS without a certificate
authority             session: tests.servers.certificates.Authority, which has issued their certificates
tcp_proxy             a function url -> TcpProxy in front of that server: proxy.url, drop(), cut(), stall(),
                      stall_requests(), stall_replies(), delay(), restore(), connections, is_holding

Helpers: eventually(condition, what=) and eventually_async(condition or coroutine function, ...), which give up after
PATIENCE_S: the deadline of whatever else would hang for ever.

Environment: BSO_TEST_AMQP_URL (with BSO_TEST_AMQP_MANAGEMENT_URL, http://user:password@host:port, for a virtual host
per test; without it amqp_url is the given URL as it is, leftovers included), BSO_TEST_DATABASE_URL (MySQL or MariaDB;
the login must be allowed to create databases, and logins with rights on them) and BSO_TEST_POSTGRES_URL name servers to
use instead of private ones.
The *_server and breakable_* fixtures are private servers always, and a test that asks for one of them gets its URLs on
that server too. A server that is not installed skips the test, and
fails it where CI is set.

Marks: unit, contract, integration, faults and acceptance come from the folder; newest from the fixtures amqp_url,
rabbitmq_management, mysql_url and database_url[mysql], unless a private server is asked for too. Written by hand are
`slow`, and `newest` where a fixture finds amqp_url or mysql_url with getfixturevalue.
"""

from tests.servers.proxy import TcpProxy
from tests.servers.waiting import PATIENCE_S, eventually, eventually_async

__all__ = ["PATIENCE_S", "TcpProxy", "eventually", "eventually_async"]

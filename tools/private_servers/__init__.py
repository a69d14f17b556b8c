"""Private RabbitMQ, MariaDB and PostgreSQL servers in temporary folders, on free ports of 127.0.0.1.

They need the Debian packages rabbitmq-server, mariadb-server and postgresql, but not their running services, and
nothing outside the standard library. Each can be killed, frozen and started again with its data; all of them die with
the process that started them, however that ends.

    with RabbitMQ() as broker, MariaDB() as database:
        work(broker.create_vhost(), database.create_database())
"""

from tools.private_servers.mariadb import MariaDB
from tools.private_servers.postgresql import PostgreSQL
from tools.private_servers.rabbitmq import Management, RabbitMQ
from tools.private_servers.server import UNMISTAKABLE, PrivateServer, ServerFailed, ServerMissing, new_password

__all__ = [
    "UNMISTAKABLE",
    "Management",
    "MariaDB",
    "PostgreSQL",
    "PrivateServer",
    "RabbitMQ",
    "ServerFailed",
    "ServerMissing",
    "new_password",
]

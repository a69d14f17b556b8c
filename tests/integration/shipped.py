"""What is shipped for the logins of a broker: deploy's definitions, the pages' commands, and the tables of rights."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tools.private_servers import UNMISTAKABLE, Management

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOGINS_PAGE, RIGHTS_PAGE = ROOT / "docs/platform-engineer.md", ROOT / "docs/security.md"
SECRETS_PAGE = ROOT / "docs/secrets.md"
_PASSWORD = UNMISTAKABLE + "of-a-login"


def table_of_rights(heading: str) -> Mapping[str, Mapping[str, str]]:
    """The first table below a heading of the page: the answers by kind of login, by operation."""
    section = RIGHTS_PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    (_, *kinds), *operations = rows
    return {name: dict(zip(kinds, answers, strict=True)) for name, *answers in operations}


@dataclass(frozen=True, kw_only=True)
class ShippedBroker:
    """A virtual host with what the compose stack loads into RabbitMQ, and further logins.

    ``secrets``: the folder that make-secrets has filled. ``urls``: those of the logins, by name.
    """

    management: Management
    amqp_url: str
    secrets: Path
    urls: dict[str, str]

    @classmethod
    def loaded(cls, management: Management, amqp_url: str, secrets: Path) -> Self:
        """Make the secrets in a folder, and load the definitions into the virtual host of a URL."""
        subprocess.run([sys.executable, DEPLOY / "make-secrets", secrets], check=True, capture_output=True)
        broker = cls(management=management, amqp_url=amqp_url, secrets=secrets, urls={})
        broker.load()
        for name in ("training", "gateway", "worker", "operator"):
            address = urlsplit((secrets / f"{name}_amqp_url").read_text().strip())
            broker.urls[str(address.username)] = broker.url_of(str(address.username), str(address.password))
        return broker

    def load(self) -> None:
        """Load the definitions, again: with what has been deleted meanwhile, and the further logins."""
        for file in (DEPLOY / "rabbitmq/topology.json", self.secrets / "rabbitmq_logins.json"):
            definitions = json.loads(file.read_text(encoding="utf-8"), object_hook=self._placed)
            definitions.pop("vhosts", None)
            self.management.request("POST", "definitions", definitions)
        for login in self.urls:
            if not login.startswith("bso-"):
                self.add(login)

    def add(self, login: str) -> None:
        """Add a login by the commands that the page gives for ``vision``."""
        for command in commands_for_a_login():
            self.rabbitmqctl(command.replace("vision", login))
        self.urls[login] = self.url_of(login, _PASSWORD)

    def rabbitmqctl(self, command: str) -> None:
        """Carry out what a command of rabbitmqctl asks for, in this virtual host, by the management interface."""
        match shlex.split(command):
            case ["rabbitmqctl", "add_user", name]:
                self.management.request("PUT", f"users/{name}", {"password": _PASSWORD, "tags": ""})
            case ["rabbitmqctl", "set_permissions", "-p", _, name, configure, write, read]:
                self.management.permit(name, self.amqp_url, configure=configure, write=write, read=read)
            case ["rabbitmqctl", "set_topic_permissions", "-p", _, name, exchange, write, read]:
                self.management.permit_topics(name, self.amqp_url, exchange=exchange, write=write, read=read)
            case _:
                raise AssertionError(f"a test cannot carry out: {command}")

    @property
    def _vhost(self) -> str:
        return unquote(urlsplit(self.amqp_url).path[1:])

    def url_of(self, login: str, password: str) -> str:
        """The URL of a login in this virtual host."""
        return self.management.url_of(self._vhost, name=login, password=password)

    def _placed(self, definition: dict[str, Any]) -> dict[str, Any]:
        return {**definition, "vhost": self._vhost} if "vhost" in definition else definition


def statements_of(heading: str, *, language: str = "sql") -> str:
    """What stands in the blocks of a language below a heading of the page of secrets."""
    section = re.split(r"\n#+ ", SECRETS_PAGE.read_text(encoding="utf-8").partition(f"# {heading}\n")[2])[0]
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    assert blocks, f"{SECRETS_PAGE} has no {language} below {heading}"
    return "".join(map(textwrap.dedent, blocks))


def commands_for_a_login() -> list[str]:
    """The commands of the page that add the login ``vision``, of a team whose jobs begin with ``vision-``."""
    page = LOGINS_PAGE.read_text(encoding="utf-8")
    start = page.index("rabbitmqctl add_user vision\n")
    return page[start : page.index("```", start)].replace("\\\n", "").splitlines()

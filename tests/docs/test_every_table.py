"""Each table of each page is compared with the code by a test, or is prose; both are listed here.

A page with a new table fails until the table is in one of the two lists: in ``COMPARED`` with its
test, or in ``PROSE`` if it says nothing that the code could contradict by a name or a value.
"""

from __future__ import annotations

import re

from tests.docs.tables import ROOT, Table, table, tables
from tests.docs.test_docs import PAGES
from tests.docs.test_promises_page import names_in

GENERATED = {
    "docs/explanation/museum-table.md",
    "docs/explanation/performance-figures.md",
    "docs/reference/mutants.md",
}
OF_EVENTS, OF_STATUS = "tests/docs/test_tables_of_events.py", "tests/docs/test_tables_of_status.py"
OF_SETTINGS, DOCS = "tests/docs/test_tables.py", "tests/docs/test_docs.py"
OF_CALLS = "tests/docs/test_tables_of_calls.py"
OF_MIGRATION = "tests/interop/test_migration_page.py"
OF_REASONS = "tests/core/test_reasons.py::test_the_page_lists_each_code"
# A table is known by its page and its first column's head, or by the first of its rows.
COMPARED: dict[str, dict[str, str]] = {
    "CONTRIBUTING.md": {"`django_redlock/`": f"{DOCS}::test_the_files_that_a_page_names_exist"},
    "README.md": {"client": "tests/tools/test_bench.py::test_the_readme_repeats_the_page"},
    "docs/explanation/architecture.md": {
        "You look for": f"{DOCS}::test_the_files_that_a_page_names_exist",
        "The rule": f"{DOCS}::test_the_files_that_a_page_names_exist",
    },
    "docs/explanation/how-it-works.md": {"Key": f"{OF_STATUS}::test_the_keys_on_a_node"},
    "docs/explanation/museum.md": {
        "Told": "tests/museum/test_page.py::test_each_cell_of_the_page_has_what_is_said_of_it"
    },
    "docs/how-to/admin.md": {
        "Permission": f"{OF_STATUS}::test_the_permissions",
        "Column of the nodes": f"{OF_STATUS}::test_the_columns_of_the_admin_page",
        "Column of the locks": f"{OF_STATUS}::test_the_columns_of_the_admin_page",
        "Column of the tasks": f"{OF_STATUS}::test_the_columns_of_the_admin_page",
        "The page says": f"{OF_STATUS}::test_what_the_admin_page_says_of_itself",
        "`known`": f"{OF_STATUS}::test_the_fields_of_the_template_tag",
    },
    "docs/how-to/asyncio.md": {"In a thread": f"{OF_CALLS}::test_the_calls_of_threads_and_tasks"},
    "docs/how-to/celery.md": {
        "I want": "tests/docs/test_celery_page.py::test_what_one_wants_is_what_is_written",
        "`on_conflict`": f"{OF_SETTINGS}::test_the_choices_of_a_task",
        "`on_unavailable`": f"{OF_SETTINGS}::test_the_choices_of_a_task",
        "`mode`": f"{OF_SETTINGS}::test_the_choices_of_a_task",
        "`on_duplicate`": f"{OF_SETTINGS}::test_the_choices_of_a_task",
    },
    "docs/how-to/deployment.md": {
        "Command": "tests/docs/test_every_block.py::test_each_command_of_a_page_exists",
        "Key": "tests/django/test_check.py::test_the_page_lists_the_keys",
    },
    "docs/how-to/errors.md": {
        "Error": f"{OF_CALLS}::test_the_tables_of_errors",
        "Place": f"{OF_CALLS}::test_the_places_of_lease_lost",
        "`@single_flight`, in the log": f"{OF_CALLS}::test_the_tables_of_errors",
    },
    "docs/how-to/fencing.md": {
        "`fenced(lease, queryset)`": f"{OF_CALLS}::test_the_methods_of_claimed_rows",
        "code": "tests/fencing/test_field.py::test_what_ordinary_code_writes_leaves_the_fence",
    },
    "docs/how-to/locks.md": {"`held`": f"{OF_STATUS}::test_the_attributes_of_a_state"},
    "docs/how-to/migrate.md": {
        "Tested with": f"{OF_MIGRATION}::test_what_the_table_says_of_a_lock",
        "redis-py": f"{OF_MIGRATION}::test_the_calls_of_redis_py_are_there",
        "Release": f"{OF_MIGRATION}::test_the_releases_of_a_deployment",
    },
    "docs/how-to/other-clients.md": {
        "Client": "tests/interop/test_other_clients_page.py::test_the_page_has_what_is_tested"
    },
    "docs/how-to/recipes.md": {
        "In an async view": "tests/docs/test_recipes_page.py::test_what_an_async_view_cannot_do"
    },
    "docs/how-to/status.md": {
        "Command": f"{OF_STATUS}::test_the_options_of_the_command",
        "`*`": f"{OF_STATUS}::test_the_patterns_mean_what_the_table_says",
        "Exit status": f"{OF_STATUS}::test_the_exit_status",
        "Key": f"{OF_STATUS}::test_the_keys_of_the_document",
    },
    "docs/how-to/transactions.md": {
        "`redlock(name, durable=…)`": f"{OF_CALLS}::test_what_durable_does",
    },
    "docs/how-to/troubleshooting.md": {
        "You read": "tests/docs/test_troubleshooting_page.py"
        "::test_each_text_of_the_page_is_said_by_a_test",
        "You see": "tests/docs/test_troubleshooting_page.py::test_what_celery_shows",
    },
    "docs/how-to/views.md": {
        "Key": f"{OF_CALLS}::test_the_keys_of_the_views_page_are_names",
        "Option": f"{OF_SETTINGS}::test_the_options_of_a_view",
        "another request runs": f"{OF_SETTINGS}::test_the_answers_of_a_view",
        "503": "tests/views/test_refusals.py::test_a_refusal_mails_nobody",
    },
    "docs/how-to/waiting.md": {"`wait`": f"{OF_SETTINGS}::test_the_wait_of_the_page"},
    "docs/how-to/which-lock.md": {
        "Protects": "tests/docs/test_which_lock_page.py::test_what_the_page_says_of_sqlite"
    },
    "docs/install.md": {"Extra": f"{OF_STATUS}::test_the_extras"},
    "docs/reference/api.md": {"Error": f"{OF_CALLS}::test_the_tables_of_errors"},
    "docs/reference/celery-failures.md": {
        "What goes wrong": "tests/docs/test_promises_page.py"
        "::test_every_failure_of_a_task_names_a_test_that_exists",
        "With": "tests/docs/test_promises_page.py"
        "::test_every_failure_of_a_task_names_a_test_that_exists",
    },
    "docs/reference/metrics.md": {
        "Metric": f"{OF_EVENTS}::test_the_table_of_metrics",
        "Level": f"{DOCS}::test_the_levels_of_the_page_are_those_of_the_log",
        "Field": f"{OF_EVENTS}::test_the_fields_of_the_log",
    },
    "docs/reference/reasons.md": {"Code": OF_REASONS},
    "docs/reference/settings.md": {
        "Key": f"{OF_SETTINGS}::test_the_types_of_the_settings",
        "Errors": f"{DOCS}::test_every_check_is_described",
    },
    "docs/reference/signals.md": {
        "Signal": f"{OF_EVENTS}::test_the_tables_of_signals",
        "Argument": f"{OF_EVENTS}::test_the_tables_of_signals",
    },
    "docs/reference/versions.md": {
        "What": "tests/tools/test_matrix.py::test_the_lower_bounds_of_the_pages"
    },
}
PROSE = {
    "docs/explanation/performance.md": {"contestant", "part", "scenario", "verdict"},
    "docs/explanation/redlock.md": {"Objection", "1", "You want"},
    "docs/how-to/asyncio.md": {"Cancelled"},
    "docs/how-to/fencing.md": {"the lock alone", "SQLite"},  # figures of one play
    "docs/how-to/celery.md": {
        "What happens",
        "A message is delivered again, and its first run",
    },
    "docs/reference/celery-failures.md": {
        "What happens",
        "what needs no second run",
        "10,000 messages, one play",
    },
    "docs/how-to/migrate.md": {"You have"},
    "docs/how-to/long-jobs.md": {"**held**"},
    "docs/how-to/deployment.md": {"Exit status", "The node keeps"},
    "docs/how-to/operate.md": {"What you see"},
    "docs/how-to/testing.md": {"At the end of the test"},
    "docs/how-to/transactions.md": {"The block"},
    "docs/how-to/views.md": {"Server"},
    "docs/how-to/waiting.md": {"What happened", "a lock that is free"},
    "docs/index.md": {"You want to"},
    "docs/reference/glossary.md": {"Term"},
    "docs/reference/reasons.md": {"Where"},
    "docs/reference/versions.md": {"Server"},
}


def title(found: Table) -> str:
    """What a table is known by, without the targets of links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found.header[0] or found.rows[0][0])


def test_every_table_is_compared_or_prose():
    """The two lists have each table of each page once, and no others."""
    pages = {str(page.relative_to(ROOT)) for page in PAGES} - GENERATED
    shown = {(page, title(each)) for page in pages for each in tables(page)}
    compared = {(page, head) for page, heads in COMPARED.items() for head in heads}
    prose = {(page, head) for page, heads in PROSE.items() for head in heads}
    assert not compared & prose
    assert compared | prose == shown


def test_each_comparison_is_there():
    """The list names tests of this repository."""
    for heads in COMPARED.values():
        for test in heads.values():
            file, _, name = test.partition("::")
            assert name in names_in(file), test


def test_a_table_is_read_cell_by_cell():
    r"""Header, rows and a ``\|`` within a cell; a table without a head has its first row."""
    found = table("docs/reference/versions.md", "Server")
    assert found.header == ("Server", "What is different")
    assert "`client|setinfo`" in found.rows[1][1]
    assert title(Table("page", ("", "b"), (("c", "d"),))) == "c"

"""A command for the worker: kill the child process that runs a task, as if memory ran out."""

import os
import signal
import time
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command

from .tasks import rehearse


@control_command(args=[("task_id", str), ("pid", int)], signature="<task_id> <pid>")  # type: ignore[untyped-decorator]
def kill_run(state: Any, task_id: str, pid: int) -> dict[str, float | None]:
    """Send SIGKILL to the child of this worker that runs a rehearsal; reply when, or None.

    The worker's main process carries this out. It kills no process but a child of its own, and
    only while that runs this message.
    """
    children = set(state.consumer.pool.info.get("processes", ())) - {os.getpid()}
    at_work = {
        (request.id, request.worker_pid)
        for request in list(worker_state.active_requests)
        if request.name == rehearse.name
    }
    if pid not in children or (task_id, pid) not in at_work:
        return {"killed": None}
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    return {"killed": killed}

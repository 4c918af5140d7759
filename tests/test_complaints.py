import pytest
from hiredis import ReplyError
from redis.exceptions import ResponseError

from django_redlock.complaints import ADVICE, complaint, describe

SCRIPT = "Error running script (call to f_d8d5a5f64a37482180c2bff3c849841803502e9f): "
# What a command in a script was answered; how Redis 6.2 passes that on.
PASSED_ON = {
    "WRONGTYPE": "@user_script:4: WRONGTYPE Operation against a key holding the wrong kind",
    "OOM": "@user_script:28: @user_script: 28: -OOM command not allowed when used memory > 'max",
    "NOREPLICAS": "@user_script:1: @user_script: 1: -NOREPLICAS Not enough good replicas to write.",
    "READONLY": "@user_script:1: @user_script: 1: -READONLY You can't write against a read only",
    "NOPERM": "@user_script:1: @user_script: 1: The user executing the script can't run this com",
}


@pytest.mark.parametrize(("code", "text"), PASSED_ON.items(), ids=PASSED_ON)
def test_an_error_in_a_script_of_redis_6(code, text):
    """F12, F17, F20: what Redis before 7.0 wraps is told in the words of later versions."""
    assert complaint(ReplyError(f"ERR {SCRIPT}{text}")) == ADVICE[code]
    assert describe(ResponseError(f"{SCRIPT}{text}")) == ADVICE[code]  # redis-py took the ERR away


def test_an_unknown_error_in_a_script_is_quoted():
    """An error without advice is told as the node told it."""
    text = "@user_script:7: user_script:7: attempt to index a nil value"
    told = complaint(ReplyError(f"ERR {SCRIPT}{text}"))
    assert told == "answered with an error: user_script:7: attempt to index a nil value"

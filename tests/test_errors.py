import copy
import pickle

import pytest

from halimede import errors
from halimede.errors import Error

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Error)]


@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_text_survive_a_prefix_and_cross_processes(kind: type[Error]) -> None:
    prefixed = kind("broke").prefixed("[request id: q] ")
    for error in (prefixed, pickle.loads(pickle.dumps(prefixed)), copy.copy(prefixed)):
        assert type(error) is kind
        assert (str(error), error.message) == ("[request id: q] broke",) * 2


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (errors.Unknown, "Unknown"),
        (errors.Internal, "Internal"),
        (errors.NotFound, "Not found"),
        (errors.Invalid, "Invalid argument"),
        (errors.Unavailable, "Unavailable"),
        (errors.Unsupported, "Unsupported"),
        (errors.AlreadyExists, "Already exists"),
        (errors.Cancelled, "Cancelled"),
        (errors.TimedOut, "Unavailable"),
        (errors.DecoupledModel, "Unsupported"),
        (errors.Unauthenticated, "Unauthenticated"),
        (errors.Forbidden, "Permission denied"),
        (errors.TooMany, "Resource exhausted"),
    ],
)
def test_kind_has_a_name_for_load_errors(kind: type[Error], word: str) -> None:
    """Load errors have the name of their kind (R19)."""
    assert kind.word == word


def test_timeout_is_unavailable_for_clients() -> None:
    """TimedOut is an Unavailable (S30)."""
    assert isinstance(errors.TimedOut("Request timeout expired"), errors.Unavailable)


def test_refused_flag_crosses_processes() -> None:
    error = errors.Invalid("no")
    assert not error.refused
    error.refused = True
    assert pickle.loads(pickle.dumps(error)).refused


def test_error_that_blames_something_comes_with_advice() -> None:
    error = errors.Unavailable("no provider").blaming(errors.Cause.ENVIRONMENT)
    assert (error.cause, error.advice) == (errors.Cause.ENVIRONMENT, errors.ADVICE[errors.Cause.ENVIRONMENT])
    own = errors.Invalid("wrong")
    own.advice = "better"
    assert own.blaming(errors.Cause.FILE).advice == "better"

"""The rules that a configuration must keep to be loaded, each asked to its end. Pure, any thread."""

from collections.abc import Iterator, Sequence

from halimede.config import message as messages
from halimede.config.checks import check_instance_groups, config_problems, tensor_problems
from halimede.config.states import state_problems
from halimede.errors import Error


def until_it_breaks(problems: Iterator[str]) -> Iterator[str]:
    """A later rule may rest on one that does not hold: what comes after it cannot be asked."""
    try:
        yield from problems
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return


def group_problems(message: messages.Message, gpus: Sequence[int]) -> Iterator[str]:
    """The rules for instance groups, asked of each group."""
    for group in message.instance_group:
        alone = messages.copy_of(message)
        del alone.instance_group[:]
        alone.instance_group.append(group)
        try:
            check_instance_groups(alone, gpus)
        except Error as error:
            yield str(error)


def finishing_problems(message: messages.Message, gpus: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Of a configuration with everything filled in: all that stands between it and a load."""
    for code, texts in (
        ("instance-group", group_problems(message, gpus)),
        ("configuration", config_problems(message)),
        ("tensor", tensor_problems(message)),
        ("state", state_problems(message)),
    ):
        yield from ((code, text) for text in until_it_breaks(texts))

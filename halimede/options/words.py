"""The words of the smaller commands: flags with their texts, and the others. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from halimede.errors import Invalid
from halimede.options.flags import Flag
from halimede.options.kinds import SWITCH
from halimede.options.parser import HelpRequested, suggestion


def read_words(args: Sequence[str], flags: Mapping[str, Flag]) -> tuple[dict[str, list[str]], list[str]]:
    """The texts that each flag is given, in order (one that takes none: an empty one), and the words that are no flags.
    Raises Invalid for a wrong line, `HelpRequested` before any error."""
    given: dict[str, list[str]] = {}
    others: list[str] = []
    words = iter(args)
    for word in words:
        if word in ("--help", "-h"):
            raise HelpRequested
        if word == "--":
            others += words
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flag = _find(name, word, flags)
            if flag.kind is SWITCH and equals:
                raise Invalid(f"option '--{name}' doesn't allow an argument")
            if flag.kind is not SWITCH and not equals:
                value = _next(words, name)
            given.setdefault(name, []).append(value)
        else:
            others.append(word)
    return given, others


def _find(name: str, word: str, flags: Mapping[str, Flag]) -> Flag:
    if name not in flags:
        hint = suggestion(name.replace("_", "-").lower(), tuple(flags), "--{}")
        raise Invalid(f"unrecognized option '{word}'{hint}")
    return flags[name]


def _next(words: Iterator[str], name: str) -> str:
    value = next(words, None)
    if value is None:
        raise Invalid(f"option '--{name}' requires an argument")
    return value


def words_of(given: Mapping[str, Sequence[str]], flags: Mapping[str, Flag], but: Sequence[str] = ()) -> list[str]:
    """The same as the words of a command line, without some of them."""
    return [
        f"--{name}" if flags[name].kind is SWITCH else f"--{name}={value}"
        for name, values in given.items()
        if name not in but
        for value in values
    ]

"""The help of `halimede serve`: the flags that are used most, then every other one in its group. Pure."""

from collections.abc import Iterable, Mapping

from halimede.options.flags import FLAGS, GROUPS, INERT, MOST_USED, PLANNED, SERVED, Flag

WIDTH = 80
_INDENT = 34


def usage(program: str = "halimede serve --model-repository=DIRECTORY", width: int = WIDTH) -> str:
    """The help, with lines of at most `width` characters, as long as no single word is longer (C1)."""
    head = f"Usage: {program} [options]\n\nFlags are written --flag=value or --flag value.\n"
    return head + "".join(_section(title, flags, width) for title, flags in _sections().items() if flags)


def _sections() -> Mapping[str, Iterable[Flag]]:
    """Each flag once, under its title."""
    rest = [(title, flag) for title, flags in GROUPS.items() for flag in flags if flag.name not in MOST_USED]
    groups = {title: [f for found, f in rest if found == title and f.support is SERVED] for title in GROUPS}
    return {
        "Used most": [FLAGS[name] for name in MOST_USED],
        **groups,
        "Not supported yet": [flag for _, flag in rest if flag.support is PLANNED],
        # A start script that was written for Triton may have them.
        "Accepted without effect": [flag for _, flag in rest if flag.support is INERT],
    }


def _section(title: str, flags: Iterable[Flag], width: int) -> str:
    return f"\n{title}:\n" + "".join(_entry(flag, width) for flag in flags)


def _entry(flag: Flag, width: int) -> str:
    import textwrap  # only printed help needs it

    label = f"  --{flag.name}" + (f" <{flag.kind.label}>" if flag.kind.label else "")
    room = max(width - _INDENT, 20)
    text = textwrap.wrap(flag.help + _remarks(flag), room, break_on_hyphens=False, break_long_words=False)
    lines = [" " * _INDENT + line for line in text]
    if len(label) + 2 <= _INDENT:
        lines[0] = f"{label:{_INDENT}}{text[0]}"
    else:
        lines.insert(0, label)
    return "\n".join(lines) + "\n"


def _remarks(flag: Flag) -> str:
    remarks = [
        "may be repeated" if flag.repeatable else "",
        f"default {flag.default}" if flag.default else "",
        f"no effect: {flag.note}" if flag.support is INERT else "",
    ]
    shown = "; ".join(remark for remark in remarks if remark)
    return f" ({shown})" if shown else ""

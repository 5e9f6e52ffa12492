"""The usage text of `halimede serve`, made from the table of flags. Pure."""

from collections.abc import Iterable, Mapping

from halimede.options.flags import GROUPS, INERT, PLANNED, Flag

_WIDTH = 80


def _remarks(flag: Flag) -> str:
    remarks = [
        "may be repeated" if flag.repeatable else "",
        f"default {flag.default}" if flag.default else "",
        "not supported yet" if flag.support is PLANNED else "",
        f"no effect: {flag.note}" if flag.support is INERT else "",
    ]
    shown = "; ".join(remark for remark in remarks if remark)
    return f" ({shown})" if shown else ""


def _entry(flag: Flag) -> str:
    import textwrap  # only where help is printed

    label = f" <{flag.kind.label}>" if flag.kind.label else ""
    lines = textwrap.wrap(flag.help + _remarks(flag), _WIDTH, break_on_hyphens=False, break_long_words=False)
    return f"  --{flag.name}{label}\n" + "".join(f"\t{line}\n" for line in lines)


def usage() -> str:
    """Every flag under the heading of its group, as Triton prints them (C1)."""
    return "Usage: halimede serve [options]\n" + listing(GROUPS)


def listing(groups: Mapping[str, Iterable[Flag]]) -> str:
    """The flags of each group under its heading; those of the group without a name stand first."""
    return "".join(
        (f"\n{title}:\n" if title else "") + "".join(_entry(flag) for flag in flags) for title, flags in groups.items()
    )

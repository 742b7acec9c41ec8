"""Who may run jobs at a site, changed in the site's own file; its other lines stay as they are."""

from __future__ import annotations

import re
from pathlib import Path

from fedspan._files import write_whole
from fedspan._foreign import parse_toml
from fedspan.deployment.kit import to_toml_value
from fedspan.deployment.policy import FILE, Policy
from fedspan.deployment.site_rules.book import Book
from fedspan.errors import InputError

_RESEARCHERS_LINE = re.compile(r"^(# *)?researchers *=.*$", re.MULTILINE)


def change_researchers(kit: Path, *, add: str | None = None, remove: str | None = None) -> tuple[str, ...]:
    """Add a name to the researchers of a site, or take one off; who is left. In effect at the site's next answer.

    Where the file named nobody, all researchers were let in: then `remove` needs the others' names first.
    """
    path, policy = kit / "local" / FILE, Policy.read(kit)
    names = policy.approvals.researchers
    if remove is not None and names is None:
        raise InputError(
            f"{path} names no researchers, so everybody's jobs may run. Add those whose jobs may go on running, with "
            "--add; all others are refused from then on."
        )
    left = [name for name in names or () if name != remove]
    if remove is not None and remove not in (names or ()):
        raise InputError(f"{remove!r} is not among the researchers of this site: {', '.join(names or ()) or 'nobody'}.")
    if add is not None and add not in left:
        left.append(add)
    line = f"researchers = {to_toml_value(left)}  # whose jobs may run"
    text = path.read_text(encoding="utf-8")
    begin = re.search(r"^\[allow\] *(#.*)?$", text, re.MULTILINE)
    if begin is None:
        text = f"{text.rstrip()}\n\n[allow]\n{line}\n"
    else:
        end = re.search(r"^\[", text[begin.end() :], re.MULTILINE)
        rest = len(text) if end is None else begin.end() + end.start()
        section, found = _RESEARCHERS_LINE.subn(lambda match: line, text[begin.end() : rest], count=1)
        text = text[: begin.end()] + (section if found else f"\n{line}{section}") + text[rest:]
    changed = Policy.parse(parse_toml(text), kit, path)
    if changed.approvals.researchers != tuple(left):
        raise InputError(f"Cannot find where {path} names its researchers. Edit it: {line}")
    act = " and ".join([*([f"added {add}"] if add else []), *([f"removed {remove}"] if remove else [])])
    Book(kit).write("administrator", act=f"{act}: whose jobs may run here")
    write_whole(path, text)
    return tuple(left)

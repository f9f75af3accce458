"""The exception of this folder, and how to install what is missing."""

import re

# Before an @ of Azure stands the container.
# Of a URL that went through a path one slash is left.
_PASSWORD = re.compile(
    r"(?:(?<=://)|(?<=\w\w:/)(?!/))(?<!abfs://)(?<!abfss://)(?<!\baz://)[^\s/?#]*@", re.IGNORECASE
)
_QUERY = re.compile(
    r"""(https?://?[^\s?'"]*\?)
    (?!\.{3,4}(?:[\s:;,)'"]|$))  # of a message in a message
    [^\s'"]+?(?=[:;,.)]*(?:[\s'"]|$))""",
    re.IGNORECASE | re.VERBOSE,
)


class TraceError(ValueError):
    """A file that cannot be read as a trace, or written.

    The message is one sentence for the user: it names the file, the place in it (request, layer,
    step) and, if there is one, the remedy. The command line prints it and exits with 1.
    What it quotes stays on one line, cannot move or colour anything in a terminal, and has no
    credentials of a URL.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(without_credentials(message)))


def one_line(text: str) -> str:
    """Return a text with an escape for every character that is not printed as itself."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def without_credentials(text: str) -> str:
    """Return a text without the users, passwords and queries of its URLs: messages end up in logs,
    and the query of a presigned URL opens its file to anybody."""
    return _QUERY.sub(r"\1...", _PASSWORD.sub("", text)) if ":/" in text else text


def install(extra: str) -> str:
    """Return how to install an extra: from a clone, since the package is on no index yet."""
    return f"pip install '.[{extra}]' in a clone of hisparse-sim"

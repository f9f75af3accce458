"""The one exception of this room."""


class TraceError(ValueError):
    """A file cannot be read as a trace, or written.

    The message is one sentence for the user: it names the file, the place in it (request, layer,
    step) and, where there is one, the way out. The command line prints it and exits with 1.
    """

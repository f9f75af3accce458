"""What a person sees: tables, figures and the report."""

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")  # here, so that commands need no figure to check them

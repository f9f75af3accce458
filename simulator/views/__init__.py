"""What users see: tables, figures and the report."""

FIGURE_SUFFIXES = (
    ".png",
    ".svg",
    ".pdf",
)  # here, so that commands can check them without importing figures

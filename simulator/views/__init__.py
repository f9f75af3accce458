"""What a person sees: tables, figures and the report."""

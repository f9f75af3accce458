"""Traces captured from a running SGLang server or a Hugging Face model."""

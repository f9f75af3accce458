"""Names without what they stand for, so that the command line loads no compiled code."""

EPOCH_CLOCK = "epoch-clock"  # SGLang's policy for drafts

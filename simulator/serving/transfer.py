"""The rate at which prompts are sent from prefill to decode instances."""

# A GPU's share of what Mooncake's Transfer Engine, which SGLang uses by default, reaches between
# two nodes: 190 GB/s over 8 x 400 Gb/s RoCE (its README, https://github.com/kvcache-ai/Mooncake).
TRANSFER_GB_S = 190 / 8

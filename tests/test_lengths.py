"""Which requests are refused for their length and which outputs are cut: one rule for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.simulator.serving.admission import Pool
from hisparse_sim.simulator.serving.lengths import Length, check_length

P, C = 53_696, 202_752  # a pool of 839 pages (sglang pull request 37631), the context of GLM-5.1


@pytest.mark.parametrize(
    ("prompt", "asked", "outcome", "output"),
    [
        (50_000, 8192, "cut", 3583),  # 53,696 - 50,048 - 65
        (45_376, 8192, "whole", 8192),
        (45_440, 8192, "cut", 8191),
        (53_568, 100, "cut", 63),
        (53_631, 1, "cut", 0),  # accepted, nothing is generated
        (53_689, 1, "cut", 0),  # the longest prompt that is accepted
        (53_690, 1, "refused", 0),
        (53_694, 1, "refused", 0),
    ],
)
def test_lengths_by_hand(prompt: int, asked: int, outcome: str, output: int) -> None:
    found = check_length(prompt, asked, P, C)
    assert (found.outcome, found.output) == (outcome, output)
    assert bool(found.reason) == (outcome != "whole")
    assert Pool(P, 4 * P, 4096, C).length(prompt, asked) == found


def test_lengths_by_the_context() -> None:
    # A pool larger than the context: 1,000 - 7 is the longest prompt, 998 the longest request.
    assert check_length(993, 7, 9600, 1000) == Length(
        "cut",
        5,
        "the context of 1,000 tokens has room for 5 of the 7 output tokens beside a prompt of 993",
    )
    assert check_length(993, 5, 9600, 1000).outcome == "whole"
    assert "longer than 993" in check_length(994, 1, 9600, 1000).reason
    over = check_length(500, 501, 9600, 1000)
    assert (over.outcome, over.output) == ("refused", 0)
    assert "1,001 tokens, exceed the context of 1,000" in over.reason


def test_reasons_name_what_binds() -> None:
    assert "longer than 53,689, the longest that the device pool of 53,696" in (
        check_length(53_694, 1, P, C).reason
    )
    assert "device pool of 53,696 tokens has room for 3,583 of the 8,192" in (
        check_length(50_000, 8192, P, C).reason
    )


def engine(n: int, o: int, pool: int, context: int) -> int | None:
    """As SGLang 0.5.23 writes it down; None: 400."""
    if n >= context or o + n > context:
        return None  # TokenizerManager._validate_one_request
    max_req_len = min(context - 1, pool - 1)  # TpModelWorker
    max_req_input_len = max_req_len - 5
    if n >= max_req_input_len:
        return None  # validate_input_length
    new = max(0, min(o, max_req_len - n - 1))  # Scheduler.init_req_max_new_tokens
    paged_input = -(-n // 64) * 64
    return max(0, min(new, pool - paged_input - 64 - 1))  # max_new_tokens_for_memory


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(0, 80).map(lambda pages: 64 * pages),
    st.integers(1, 6000),
)
def test_lengths_as_the_engine_writes_them(n: int, o: int, pool: int, context: int) -> None:
    found, theirs = check_length(n, o, pool, context), engine(n, o, pool, context)
    assert (None if found.outcome == "refused" else found.output) == theirs
    assert (found.outcome == "whole") == (theirs == o)

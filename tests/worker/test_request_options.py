"""Options of a request are understood or refused by name."""

import pytest

from tlt_engine.worker.request_options import check_options, max_draft_tokens


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None, [1]])
def test_what_is_no_number_of_tokens_is_refused(value):
    with pytest.raises(ValueError, match="vllm_xargs.tlt_max_draft_tokens: expected a whole number from 0 on, got"):
        check_options({"tlt_max_draft_tokens": value})


def test_an_unknown_key_of_ours_is_refused_and_others_are_not_ours():
    with pytest.raises(ValueError, match="unknown key 'tlt_off'.*'tlt_max_draft_tokens'"):
        check_options({"tlt_off": 1})
    check_options({"kv_transfer_params": {}, "tlt_max_draft_tokens": 3})
    check_options(None)


def test_a_cap_only_lowers():
    assert max_draft_tokens({"tlt_max_draft_tokens": 3}, 15) == 3
    assert max_draft_tokens({"tlt_max_draft_tokens": 30}, 15) == 15
    assert max_draft_tokens({"tlt_max_draft_tokens": 0}, 15) == 0
    assert max_draft_tokens({}, 15) == max_draft_tokens(None, 15) == 15

from paceline.policies.base import Plan, SequenceView
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings, Statistics


def test_the_requests_own_sizes_win_over_the_policys():
    policy = FixedPolicy(8, 14)

    def choose(**settings):
        return policy.choose(SequenceView(GenerationSettings(**settings), Statistics()))

    assert choose() == Plan(8, 14)
    assert choose(block_size=4) == Plan(4, 14)
    assert choose(tree_budget=30) == Plan(8, 30)


def test_room_is_kept_for_the_largest_tree_a_request_may_ask_for():
    assert FixedPolicy(8, 14).max_tree_budget(GenerationSettings(tree_budget=30)) == 30
    assert FixedPolicy(8, 14).max_tree_budget(GenerationSettings()) == 14

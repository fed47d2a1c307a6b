"""Reward: the share of digits in a response, which even a tiny model can learn to increase."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(character in "0123456789" for character in solution_str) / max(1, len(solution_str))

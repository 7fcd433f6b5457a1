"""THE BEST FILE OF A SIZE: types for groups of weights, chosen by what each costs in KL divergence."""

__all__: list[str] = []

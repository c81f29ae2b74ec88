"""Programs that stand still, each for a reason of its own, and healthy ones that only look so."""

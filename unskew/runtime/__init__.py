"""Who answers a plan: the in-process simulator."""

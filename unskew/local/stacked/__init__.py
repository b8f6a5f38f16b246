"""Many clients trained as one batched call."""

"""What a search believes: loss curves, the stability limit, and the cost to target that follows from them."""

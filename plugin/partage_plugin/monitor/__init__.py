"""What runs under the hand-overs, watched from outside."""

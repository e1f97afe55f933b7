"""What to do about findings. Pure: findings, policy, records and a time go in; wishes and reasons come out."""

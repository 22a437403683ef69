"""What commands are asked for, by themes, as `isomerge.api` has their functions."""

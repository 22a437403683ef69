"""What commands do, whoever asks: each is planned (opened, checked, costed, nothing written), and the plan runs."""

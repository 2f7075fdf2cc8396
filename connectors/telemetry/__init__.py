"""What does every task report? Latency, retries and the labels of tables."""

"""What is told of requests: statistics, metrics of models, traces, logs. Changes nothing about them."""

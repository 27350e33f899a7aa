"""Kafka: message codec, topics, spool, publisher, consumer and a broker for one machine."""

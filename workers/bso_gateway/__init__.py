"""The HTTP gateway: who cannot speak AMQP reaches the same decisions over HTTP. Stateless, any number of replicas."""

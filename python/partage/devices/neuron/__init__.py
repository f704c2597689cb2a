"""AWS Neuron devices: what pods ask of them."""

"""unskew: federated learning on heterogeneous (non-IID) client data.

    import unskew as us

    methods = {"FedAvg": us.FedAvg(), "FedProx": us.FedProx(mu=0.1)}
    history = us.simulate(methods, data="digits", split=us.Dirichlet(alpha=0.1, num_clients=20), rounds=20)
    print(history)

The public names are listed in `__init__.pyi` and imported when they are first used: `import unskew` alone is quick and
loads no PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

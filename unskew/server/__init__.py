"""Server mathematics: pure functions of trees and tensors, no clients and no network."""

"""The models on this device: what can be fetched, and what is here."""

from onhand.home import data_folder
from onhand.library.fetch import pull
from onhand.library.store import ModelStore

__all__ = ["ModelStore", "data_folder", "pull"]

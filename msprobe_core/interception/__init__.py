"""What framework plugins build on to observe calls: of APIs, modules, gradients and communication, by patches.

It reports to a `CallRecorder` and knows nothing of recording itself.
"""

import gym
import gymnasium
import numpy as np


class Pendulum(gym.Env):
    def __init__(self, **kwargs):
        self._env = gymnasium.make("Pendulum-v1")
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = gym.spaces.Dict({"states": gym.spaces.Box(-8, 8, (3,), np.float32)})

    def reset(self, seed=None, options=None):
        obs, info = self._env.reset(seed=seed)
        return {"states": obs}, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self._env.step(2 * action)
        return {"states": obs}, float(reward), terminated, truncated, info


gym.register("PendulumDict-v0", entry_point="franka_sim.pendulum:Pendulum", max_episode_steps=200)

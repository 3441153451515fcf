"""A ROS 2 node: images, their cameras and 2D boxes in, poses with scores and covariances out.

python examples/ros2_node.py --ros-args -p model:=parts/duck

It reads `image` (sensor_msgs/Image, rgb8 or bgr8), `camera_info` (sensor_msgs/CameraInfo) and `boxes`
(vision_msgs/Detection2DArray), and publishes `poses` (vision_msgs/Detection3DArray): for each box one detection whose
hypotheses are the modes of the posterior, best score first, in the camera's optical frame.

Not run: nothing of this file was run with ROS. What fills the message, `to_detection3d`, is tested without it.
"""

import numpy as np
import rclpy
from message_filters import ApproximateTimeSynchronizer, Subscriber
from PIL import Image
from rclpy.node import Node
from rosidl_runtime_py.set_message import set_message_fields
from sensor_msgs.msg import CameraInfo
from sensor_msgs.msg import Image as ImageMessage
from vision_msgs.msg import Detection2DArray, Detection3DArray

import aquamam
from aquamam.data.cameras import camera_of
from aquamam.network.poses import METRES, part_of
from aquamam.posterior.hypotheses import to_detection3d


class Poses(Node):
    """One part's model."""

    def __init__(self) -> None:
        super().__init__("aquamam")
        name = self.declare_parameter("model", "die").value
        self.model = aquamam.load(name)
        self.part, self.label = part_of(self.model), name
        self.out = self.create_publisher(Detection3DArray, "poses", 1)
        topics = (ImageMessage, "image"), (CameraInfo, "camera_info"), (Detection2DArray, "boxes")
        self.inputs = [Subscriber(self, kind, topic) for kind, topic in topics]
        self.together = ApproximateTimeSynchronizer(self.inputs, 5, 0.05)
        self.together.registerCallback(self.answer)

    def answer(self, picture: ImageMessage, camera: CameraInfo, found: Detection2DArray) -> None:
        pixels = np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.step)[:, : 3 * picture.width]
        pixels = pixels.reshape(picture.height, picture.width, 3)[..., :: -1 if picture.encoding == "bgr8" else 1]
        values = {"k": list(camera.k), "d": list(camera.d), "distortion_model": camera.distortion_model}
        boxes = []
        for one in found.detections:
            x, y, width, height = (
                one.bbox.center.position.x,
                one.bbox.center.position.y,
                one.bbox.size_x,
                one.bbox.size_y,
            )
            boxes.append((x - width / 2, y - height / 2, width, height))
        hypotheses = []
        try:
            if boxes:
                image = Image.fromarray(np.ascontiguousarray(pixels))
                poses = aquamam.poses(self.model, image, boxes, camera_of(values, "camera_info"))
                hypotheses = poses.hypotheses(500)
        except aquamam.InputError as error:
            self.get_logger().warning(str(error))
        stamp = picture.header.stamp
        message = to_detection3d(
            hypotheses,
            picture.header.frame_id,
            class_ids=[self.label] * len(hypotheses),
            metres=METRES.get(self.part.unit, 1.0),
            radius=self.part.radius,
            stamp=(stamp.sec, stamp.nanosec),
        )
        filled = Detection3DArray()
        set_message_fields(filled, message)
        self.out.publish(filled)


if __name__ == "__main__":
    rclpy.init()
    rclpy.spin(Poses())

"""HTTP that gateway and Flower share: rejections, origins, server-sent events."""

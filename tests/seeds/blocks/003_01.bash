$ sh build.sh

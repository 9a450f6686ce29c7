package oracle;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.utils.Utils;

/**
 * `PropertiesFile READ STORED`: what Kafka reads in the file READ, as one JSON line {name: value}; and the same, stored
 * by Java in the file STORED.
 */
public final class PropertiesFile {
    public static void main(String[] args) throws Exception {
        Properties found = Utils.loadProps(args[0]);
        try (var stored = Files.newOutputStream(Path.of(args[1]))) {
            found.store(stored, null);
        }
        TreeMap<String, String> sorted = new TreeMap<>();
        for (String name : found.stringPropertyNames()) sorted.put(name, found.getProperty(name));
        System.out.println(Json.str(sorted));
    }
}
